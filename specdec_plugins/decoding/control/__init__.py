"""Controllers: policies that plan how many tokens the next step drafts, one file a policy. They read no clock."""
