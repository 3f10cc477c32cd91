"""How Capsule is built: environment, native wheel, freeze, notices. Nothing here is part of the frozen program."""
