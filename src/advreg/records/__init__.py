"""What runs leave behind: sealed records, one schema a file, readable by every layer."""
