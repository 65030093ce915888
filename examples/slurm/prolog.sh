#!/bin/bash
# Prolog of Slurm (slurm.conf: Prolog=...), run as root on each node before a job: clocks that were left lowered while no
# epilog could run, as on a node that lost power, are reset.
pfo_fs=/opt/pfo-fs/bin/pfo-fs
# end of settings
export PATH=/usr/sbin:/usr/bin:/sbin:/bin  # Slurm starts hooks without one

if [ -n "$CUDA_VISIBLE_DEVICES" ]; then
  timeout 30 "$pfo_fs" reset-clocks  # of those GPUs, which Slurm has set to the job's
fi
exit 0                               # another exit code would drain the node
