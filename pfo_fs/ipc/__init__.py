"""How the processes of one host talk: training, its clock process, and the host's helper."""
