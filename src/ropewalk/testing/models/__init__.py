"""The parts of the scripted model server: conversations, scripts, wire formats, faults, the ledger."""
