"""dordis where its users already are: Flower, Ray."""
