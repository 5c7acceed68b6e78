"""Predicted utility of releases, from public or synthetic data, before privacy is spent.

NOT PRIVATE: results contain true numbers of the data they are made from.
"""
