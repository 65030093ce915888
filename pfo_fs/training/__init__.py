"""What runs inside the training process of one rank."""
