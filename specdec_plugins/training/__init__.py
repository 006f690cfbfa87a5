"""What training needs besides fairseq: masks, losses, initialisation."""
