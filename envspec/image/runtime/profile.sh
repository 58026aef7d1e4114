# A login shell's /etc/profile sets PATH anew: the image's goes first again.
if IFS= read -r envspec_path </opt/envspec/path; then
    case ":$PATH:" in
    *":$envspec_path:"*) ;;
    *) PATH="$envspec_path:$PATH" ;;
    esac
fi
unset envspec_path
export PATH
