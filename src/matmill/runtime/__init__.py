"""Where launches run on a GPU: the driver, device memory, launches as the driver reads them, what a stream keeps."""
