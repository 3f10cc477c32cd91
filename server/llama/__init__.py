"""The only package that touches llama_cpp or ctypes."""
