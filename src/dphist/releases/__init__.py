"""Where true counts meet noise: nothing else in dphist lets a count out."""
