# A login shell's /etc/profile sets PATH anew: the environment goes first again.
case ":$PATH:" in
*:/opt/env/bin:*) ;;
*) PATH="/opt/env/bin:$PATH" ;;
esac
export PATH
