"""Files of records: where records end, how a file is cut, how a segment is read."""
