#!/bin/sh
# The conformance suite of {{ name }} on nodes of a Slurm cluster: a job for each node.
{% if together %}
# Then {{ together|join(" and ") }} on the nodes that passed, together.
{% endif %}
#
#   sh JOB.sh [NODE...]     submits the jobs and ends (default: the partition's nodes that accept jobs)
#
# When they have ended: envspec fleet report {{ receipts }}
# Change what you need. sbatch reads SBATCH_PARTITION, SBATCH_ACCOUNT and SBATCH_QOS from the environment.
set -eu
cd {{ receipts|quote }}
if [ -e nodes.txt ]; then
    echo "$PWD has the receipts of another run" >&2
    exit 2
fi
if [ $# -gt 0 ]; then
    printf '%s\n' "$@" > nodes.txt
else
    partition=${SBATCH_PARTITION:-$(sinfo --noheader --format=%P | sed -n 's/\*$//p')}
    sinfo --noheader --Node --partition="$partition" --format=%N > nodes.txt
    set -- $(sinfo --noheader --Node --partition="$partition" --format=%N --responding --states=idle,allocated,mixed)
fi

cat > .envspec/node.sh <<'EOF'
#!/bin/sh
exec {{ suite }} --request .envspec/request.json --report "$SLURMD_NODENAME"
EOF

# All of a node, because other jobs would slow it down. A job that starts again would be another run.
submit() {
    sbatch --parsable --job-name=envspec-conformance --exclusive --mem=0 --ntasks-per-node=1 --no-requeue \
        --time={{ minutes }} --open-mode=append "$@"
}

# Not an array: Slurm may run two jobs of an array on one node.
ended=
for node in "$@"; do
    mkdir -p "$node"
    # A job that can't end in time is cancelled: a node without a receipt is reported as lost.
    if ! id=$(submit --nodes=1 --nodelist="$node" --deadline=now+{{ 2 * minutes }}minutes --output="$node/log.txt" \
        .envspec/node.sh); then
        echo "$node: Slurm refuses the job" >&2
        continue
    fi
    ended=$ended:${id%%;*}
    echo "$node: job ${id%%;*}"
done
if [ -z "$ended" ]; then
    echo "no node accepts jobs: see sinfo --list-reasons" >&2
    exit 6
fi
{% if together %}

cat > .envspec/rank.sh <<'EOF'
#!/bin/sh
exec {{ suite }} --request .envspec/together.json --report "$SLURMD_NODENAME/together" \
    --nodes "$SLURM_JOB_NUM_NODES" --node-rank "$SLURM_PROCID" \
    --rendezvous "$SLURM_LAUNCH_NODE_IPADDR:$((29400 + SLURM_JOB_ID % 1000))"
EOF

cat > .envspec/together.sh <<'EOF'
#!/bin/sh
set -- $(grep -l '^  "verdict": "passed"' */receipt.json | sed 's,/receipt.json,,')
if [ $# -lt 2 ]; then
    echo "{{ together|join(" and ") }} on several nodes: not run, because $# passed"
    exit
fi
for node in "$@"; do
    mkdir -p "$node/together"
done
sbatch --job-name=envspec-conformance --exclusive --mem=0 --ntasks-per-node=1 --no-requeue --time={{ minutes }} \
    --nodes=$# --ntasks=$# --nodelist="$(echo "$@" | tr ' ' ,)" --open-mode=append --output=together.txt \
    --wrap 'exec srun --whole --kill-on-bad-exit=0 sh .envspec/rank.sh'
EOF

# It submits the last job: which nodes passed is not known before.
sbatch --parsable --job-name=envspec-conformance --nodes=1 --ntasks=1 --time=5 --dependency="afterany$ended" \
    --open-mode=append --output=together.txt .envspec/together.sh
{% endif %}
