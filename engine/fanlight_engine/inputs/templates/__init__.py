"""Chat templates, which are programs that came with a checkpoint: rendered where they can do no harm.

environment       what a template may say and call: Jinja's sandbox, as transformers sets it up, and stricter
renderer_process  the process that runs them, which the system holds to limits of time and memory
renderer          this side: starts it, asks it, and ends it
files             which file of a checkpoint a template came from
"""
