"""`pfo-fs doctor DIR`: checks a shared directory, from one host or between several. One module for each topic."""
