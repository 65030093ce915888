"""What sets clocks: which clock is requested when, in turn with the host's other processes, and how it is put back."""
