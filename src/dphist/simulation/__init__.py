"""What a release would be worth, predicted from data that is public or made up, before privacy is spent.

Nothing here is private: no true number of the data is protected by anything.
"""
