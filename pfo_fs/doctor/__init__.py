"""`pfo-fs doctor`: what works on this node, and what changes of the clock cost here, measured."""
