"""`python -m benchmarks.gpu`, from the repository's root."""

import sys

from benchmarks.gpu.run import main

sys.exit(main())
