#!/bin/bash
# Prolog of Slurm (slurm.conf: Prolog=...), run as root on each node before a job: clocks that were left lowered while no
# epilog could run, as on a node that lost power, are reset.
pfo_fs=/opt/pfo-fs/bin/pfo-fs
# end of settings

if [ -n "$SLURM_JOB_GPUS" ]; then
  timeout 30 "$pfo_fs" reset-clocks  # of the GPUs in CUDA_VISIBLE_DEVICES, which Slurm sets to those of the job
fi
exit 0                               # another exit code would drain the node
