"""How chains of stages run: on Ray Data or in this process, with progress and stops."""
