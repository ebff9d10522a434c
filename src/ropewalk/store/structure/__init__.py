"""The second chance of files whose text is in conflict: a merge of their declarations, found by syntax trees."""
