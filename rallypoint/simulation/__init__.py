"""Written traces played through the rules of supervision: what would the supervisor have done, and when?"""
