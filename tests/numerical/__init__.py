"""Every sharding rule, and random programs, run on workers and compared with one device."""
