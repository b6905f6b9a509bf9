"""What a GPU gives, and how near the engine comes to it: one script of sections, most important first.

sections       which there are, and the loop that runs each in a process of its own within its time
one_section    that process: measures one section
record         the results file, written at every figure, so that whoever is stopped loses nothing
models, cores  random models of real shapes, and cores that decode with them
ceilings, decode, device_tests, switches, attention, prefill, peer    the sections
step_profile   what a profiler saw of decode steps, as text
summary        the results as text and as a picture

python -m benchmarks.gpu --tests --out DIR                      on a machine with a CUDA device
python -m benchmarks.gpu --device cpu --tiny --out DIR          everything small, to see that it runs
"""
