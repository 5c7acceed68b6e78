"""From rows to a histogram: engines that make the contract true. They know nothing of noise."""
