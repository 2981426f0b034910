"""What Pau & Aymone 2024 print, as data and as plain Python: an oracle that imports nothing of learncost."""
