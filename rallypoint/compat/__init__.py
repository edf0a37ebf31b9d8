"""What imitates another product: each package translates its words into ours at the border, and the core reads none of them."""
