"""Inside a runner: waiting queue, scheduler, step loop, detokenizer. Knows llama.cpp only through `ports`."""
