#!/bin/bash
# Epilog of Slurm (slurm.conf: Epilog=...), run as root on each node when the last process of a job has gone.
pfo_fs=/opt/pfo-fs/bin/pfo-fs
power_limit_w=                       # of your GPUs, in W, if jobs may change it; empty: power limits are left alone
# end of settings
export PATH=/usr/sbin:/usr/bin:/sbin:/bin  # Slurm starts hooks without one

# pfo-fs resets clocks when training ends, however it ends. This is for the case that all its processes were killed too.
if [ -n "$CUDA_VISIBLE_DEVICES" ]; then
  timeout 30 "$pfo_fs" reset-clocks ${power_limit_w:+--power-limit "$power_limit_w"}
fi
exit 0                               # another exit code would drain the node
