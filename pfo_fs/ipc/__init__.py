"""Messages between the processes of one host: training, its clock process, and the host's helper."""
