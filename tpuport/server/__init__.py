"""The language server: findings of the linter while a file is edited. pygls is imported
nowhere else.
"""
