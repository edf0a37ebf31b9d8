"""What is kept of a training, in memory and in storage, without torch: names, order, proof, and how it gets there."""
