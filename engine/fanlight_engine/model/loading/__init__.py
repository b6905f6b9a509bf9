"""From a checkpoint's files to a model in memory: judged first, then read, then compared with itself."""
