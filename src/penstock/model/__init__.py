"""Data only: what the port takes and gives, and what the engine works on. Nothing here does anything.

=============  ===============================================================
`batch`        messages as columns: those to publish, and those that are stored
`commands`     what changes something: a unit holds some, all or none
`queries`      what only looks
`stats`        what queries answer
=============  ===============================================================
"""
