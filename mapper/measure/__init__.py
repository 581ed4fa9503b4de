"""What this machine is and how long things take on it: device, peaks, timing, stalls, meters, journal."""
