"""Controllers: policies for the draft length, one file each. They read no clock."""
