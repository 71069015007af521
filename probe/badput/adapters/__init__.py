"""Adapters: what a training framework tells of its loop, said in badput's words.

Each is a module of its own that imports its framework; badput imports none of them by itself but
below ``badput run``, where the program has imported the framework already. They use only what a
training script could call: ``step``, ``span``, ``event``. docs/adapters.md says how to write one.
"""
