"""Shot boundaries: hard cuts, fades, dissolves, wipes."""
