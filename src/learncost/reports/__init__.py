"""What every command answers, as data and as tables on screens."""
