"""Each file of a store, damaged in each way: what finds it, what mends it, and what is said to be lost."""
