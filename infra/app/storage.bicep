// The host's storage account. It holds the deployed package, timer locks and function keys (blobs), the queues
// metrics and actions, and the tables ScalingState and ScalingLog; of the consumer its checkpoints, leases and dead
// letters (blobs), and the tables ConsumerStats and ConsumerControls. Host, app and consumer create all but one.

@description('Name of the storage account: 3 to 24 lower-case letters and digits.')
@minLength(3)
@maxLength(24)
param name string

@description('Name of the blob container for the deployed package.')
param deploymentContainerName string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Whether it is reached through private endpoints only.')
param closed bool

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: {
    name: 'Standard_LRS'
  }
  properties: {
    allowSharedKeyAccess: false
    allowBlobPublicAccess: false
    allowCrossTenantReplication: false
    defaultToOAuthAuthentication: true
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    // Without a virtual network the app reaches its storage through the public endpoint, by identity.
    publicNetworkAccess: closed ? 'Disabled' : 'Enabled'
    networkAcls: {
      defaultAction: closed ? 'Deny' : 'Allow'
      bypass: 'AzureServices'
    }
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: account
  name: 'default'
}

resource deploymentContainer 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = {
  parent: blobs
  name: deploymentContainerName
  properties: {
    publicAccess: 'None'
  }
}

@description('Name of the storage account.')
output name string = account.name

@description('Name of the container for the deployed package.')
output deploymentContainerName string = deploymentContainer.name
