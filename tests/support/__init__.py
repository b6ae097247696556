"""Fakes and builders that several tests share."""
