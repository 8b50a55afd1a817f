"""What belongs to cells: their contexts, their events, the data of what they drew."""
