"""What a world shows of its life, when its silence is a hang, who is to blame, and who is slow. Pure."""
