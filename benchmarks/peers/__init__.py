"""Other engines that ours is measured against, each a process of its own, in a virtual environment of its own."""
