"""Turn weighted rows into weights: batching, steps, guards, checkpoints. Blind to the algorithm that made the rows."""
