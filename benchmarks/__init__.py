"""The measurements that the documentation quotes."""
