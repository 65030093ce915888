"""`python -m pfo_fs` is `pfo-fs`."""

from pfo_fs.cli import main

main()
