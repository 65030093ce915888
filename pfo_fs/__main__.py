"""`python -m pfo_fs` is `pfo-fs`."""

from pfo_fs.cli import main

if __name__ == "__main__":  # the workers of a frontier import this module again
    main()
