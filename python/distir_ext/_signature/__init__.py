"""What an executable says of itself, and of its module: parameters, results, devices."""
